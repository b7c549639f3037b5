#include "capability_files.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "state.h"

enum { PATH_SIZE = PATH_MAX + 128 };

__attribute__((format(printf, 2, 3))) static void join(char path[PATH_SIZE], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, PATH_SIZE, format, arguments);
    va_end(arguments);
}

uint32_t capability_minor_gi(uint32_t gpu_minor, uint32_t gi)
{
    return 3 + 135 * gpu_minor + 9 * gi;
}

uint32_t capability_minor_ci(uint32_t gpu_minor, uint32_t gi, uint32_t ci)
{
    return capability_minor_gi(gpu_minor, gi) + 1 + ci;
}

static void node_path(char path[PATH_SIZE], const char *root, uint32_t minor)
{
    join(path, "%s/dev/nvidia-caps/nvidia-cap%u", root, minor);
}

bool capability_node_exists(const char *root, uint32_t minor)
{
    char path[PATH_SIZE];
    node_path(path, root, minor);
    return access(path, F_OK) == 0;
}

static void make_file(const char *path, const char *text)
{
    char temporary[PATH_SIZE];
    join(temporary, "%s.tmp", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    bool whole = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    if (!whole || rename(temporary, path) != 0)
        unlink(temporary);
}

static void show(const char *root, const char *folder, uint32_t minor)
{
    char path[PATH_SIZE], text[96];
    mkdir(folder, 0755);
    join(path, "%s/access", folder);
    snprintf(text, sizeof text, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
    if (access(path, F_OK) != 0)
        make_file(path, text);
    char device[PATH_SIZE];
    node_path(device, root, minor);
    if (access(device, F_OK) == 0)
        return;
    if (mknod(device, S_IFCHR | 0444, makedev(CAPABILITY_MAJOR, minor)) != 0) {
        int fd = open(device, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
        if (fd >= 0)
            close(fd);
    }
}

static void hide(const char *root, const char *folder, uint32_t minor)
{
    char path[PATH_SIZE];
    join(path, "%s/access", folder);
    unlink(path);
    rmdir(folder);
    node_path(path, root, minor);
    unlink(path);
}

static void sync_gpu(const char *root, const struct gpu *gpu, uint32_t minor, const char *folder)
{
    char gi_folder[PATH_SIZE], ci_folder[PATH_SIZE];
    for (uint32_t g = 0; g < MAX_GI; g++) {
        bool gi_used = gpu != NULL && gpu->gi[g].used;
        join(gi_folder, "%s/gi%u", folder, g);
        if (!gi_used && access(gi_folder, F_OK) != 0)
            continue;
        if (gi_used)
            show(root, gi_folder, capability_minor_gi(minor, g));
        for (uint32_t c = 0; c < MAX_CI; c++) {
            join(ci_folder, "%s/ci%u", gi_folder, c);
            if (gi_used && gpu->gi[g].ci[c].used)
                show(root, ci_folder, capability_minor_ci(minor, g, c));
            else if (access(ci_folder, F_OK) == 0)
                hide(root, ci_folder, capability_minor_ci(minor, g, c));
        }
        if (!gi_used)
            hide(root, gi_folder, capability_minor_gi(minor, g));
    }
}

static const struct gpu *gpu_with_minor(const struct node *node, uint32_t minor)
{
    for (uint32_t i = 0; i < node->gpu_count; i++)
        if (node->gpus[i].present && node->gpus[i].minor == minor)
            return &node->gpus[i];
    return NULL;
}

void capability_files_sync(const char *root, const struct node *node)
{
    if (root[0] == 0)
        return;
    char folder[PATH_SIZE];
    for (uint32_t minor = 0; minor < MAX_GPUS; minor++) {
        join(folder, "%s/proc/driver/nvidia/capabilities/gpu%u/mig", root, minor);
        if (access(folder, F_OK) == 0)
            sync_gpu(root, gpu_with_minor(node, minor), minor, folder);
    }
}
