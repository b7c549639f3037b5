#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "capability_files.h"
#include "location.h"

static const char magic[8] = "NVMLSIM";
static const char state_prefix[] = "libnvidia-nvmlsim.so.";
static const char *const library_folders[] = {LIBRARY_FOLDER, "/usr/lib64"};

static bool find_in_folder(const char *folder, char path[PATH_MAX])
{
    DIR *directory = opendir(folder);
    if (directory == NULL)
        return false;
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(directory)) != NULL;)
        if (strncmp(entry->d_name, state_prefix, sizeof state_prefix - 1) == 0)
            found = snprintf(path, PATH_MAX, "%s/%s", folder, entry->d_name) < PATH_MAX;
    closedir(directory);
    return found;
}

bool store_locate(char path[PATH_MAX])
{
    const char *given = getenv("NVMLSIM_STATE");
    if (given != NULL && *given != 0)
        return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX;
    char folder[PATH_MAX];
    if (location_own_folder(folder) && find_in_folder(folder, path))
        return true;
    for (size_t i = 0; i < sizeof library_folders / sizeof *library_folders; i++)
        if (find_in_folder(library_folders[i], path))
            return true;
    return false;
}

static void root_of(const char *path, char root[PATH_MAX])
{
    root[0] = 0;
    for (size_t i = 0; i < sizeof library_folders / sizeof *library_folders; i++) {
        const char *below = strstr(path, library_folders[i]);
        if (below != NULL) {
            snprintf(root, PATH_MAX, "%.*s", (int)(below - path), path);
            return;
        }
    }
}

static const char *map_file(struct store *store)
{
    store->writable = true;
    store->fd = open(store->path, O_RDWR | O_CLOEXEC);
    if (store->fd < 0) {
        store->writable = false;
        store->fd = open(store->path, O_RDONLY | O_CLOEXEC);
    }
    if (store->fd < 0)
        return "the state file cannot be opened";
    struct stat status;
    if (fstat(store->fd, &status) != 0 || (uint64_t)status.st_size != sizeof(struct state_file)) {
        close(store->fd);
        return "the state file has another size than this library expects: it was made by another version";
    }
    int protection = store->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    store->file = mmap(NULL, sizeof(struct state_file), protection, MAP_SHARED, store->fd, 0);
    if (store->file == MAP_FAILED) {
        close(store->fd);
        return "the state file cannot be mapped";
    }
    if (memcmp(store->file->magic, magic, sizeof magic) != 0) {
        munmap(store->file, sizeof(struct state_file));
        close(store->fd);
        return "the state file was not made by nvmlsim";
    }
    store->pid = getpid();
    return NULL;
}

const char *store_open(struct store *store, const char *path)
{
    memset(store, 0, sizeof *store);
    pthread_mutex_init(&store->mutex, NULL);
    if (realpath(path, store->path) == NULL)
        return "the state file does not exist";
    root_of(store->path, store->root);
    return map_file(store);
}

void store_close(struct store *store)
{
    munmap(store->file, sizeof(struct state_file));
    close(store->fd);
    pthread_mutex_destroy(&store->mutex);
}

const char *store_create(const char *path, const char *(*fill)(struct store *, struct node *, const void *),
                         const void *argument)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return "the state file cannot be created";
    struct state_file head = {.size = sizeof head};
    memcpy(head.magic, magic, sizeof magic);
    bool written = ftruncate(fd, sizeof head) == 0 && pwrite(fd, &head, sizeof head.magic + sizeof head.size, 0) > 0;
    close(fd);
    if (!written)
        return "the state file cannot be written";
    struct store store;
    const char *problem = store_open(&store, path);
    if (problem != NULL)
        return problem;
    struct node *node = store_begin_write(&store);
    problem = fill(&store, node, argument);
    if (problem == NULL)
        store_commit(&store);
    store_end(&store);
    store_close(&store);
    return problem;
}

/* A lock belongs to the open file, which a forked child shares with its parent: the child opens its own. */
static void reopen_after_fork(struct store *store)
{
    if (store->pid == getpid())
        return;
    int inherited = store->fd;
    struct state_file *mapped = store->file;
    if (map_file(store) == NULL) {
        munmap(mapped, sizeof(struct state_file));
        close(inherited);
    } else {
        store->fd = inherited;
        store->file = mapped;
    }
}

static void lock(struct store *store, int operation)
{
    pthread_mutex_lock(&store->mutex);
    reopen_after_fork(store);
    while (flock(store->fd, operation) != 0 && errno == EINTR)
        continue;
}

static struct node *valid_slot(const struct store *store)
{
    return &store->file->slots[__atomic_load_n(&store->file->generation, __ATOMIC_ACQUIRE) & 1];
}

/* A writer that died between its commit and its files leaves them behind: the next one to come makes them true. */
static void finish_files(struct store *store)
{
    struct live *live = &store->file->live;
    if (store->writable && live->files_generation != store->file->generation) {
        capability_files_sync(store->root, valid_slot(store));
        live->files_generation = store->file->generation;
    }
}

const struct node *store_begin_read(struct store *store)
{
    lock(store, LOCK_SH);
    if (store->writable && store->file->live.files_generation != store->file->generation) {
        while (flock(store->fd, LOCK_EX) != 0 && errno == EINTR)
            continue;
        finish_files(store);
    }
    return valid_slot(store);
}

struct node *store_begin_write(struct store *store)
{
    lock(store, LOCK_EX);
    if (!store->writable) {
        store_end(store);
        return NULL;
    }
    finish_files(store);
    struct node *copy = &store->file->slots[(store->file->generation + 1) & 1];
    memcpy(copy, valid_slot(store), sizeof *copy);
    return copy;
}

void store_commit(struct store *store)
{
    __atomic_add_fetch(&store->file->generation, 1, __ATOMIC_RELEASE);
    finish_files(store);
    syscall(SYS_futex, &store->file->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void store_wait(struct store *store, uint32_t generation, int64_t timeout_ms)
{
    struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000};
    long result = syscall(SYS_futex, &store->file->generation, FUTEX_WAIT, generation, &timeout, NULL, 0);
    if (result != 0 && errno != EAGAIN && errno != ETIMEDOUT && errno != EINTR) {
        struct timespec rest = {.tv_nsec = 20 * 1000000};
        nanosleep(&rest, NULL);
    }
}

void store_end(struct store *store)
{
    flock(store->fd, LOCK_UN);
    pthread_mutex_unlock(&store->mutex);
}
