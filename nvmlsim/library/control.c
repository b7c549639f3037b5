#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "machine.h"
#include "nvml.h"
#include "request.h"
#include "show.h"

static int64_t refuse(char *answer, uint64_t size, const char *message)
{
    snprintf(answer, size, "%s", message);
    return -1;
}

static const char *carry_out(struct store *store, struct node *node, const void *argument)
{
    static _Thread_local char message[MAX_MESSAGE];
    for (const char *line = argument; *line != 0;) {
        size_t length = strcspn(line, "\n");
        struct words words;
        if (!words_parse(&words, line, (uint32_t)length))
            return "a line is too long or has a word without '='";
        bool known;
        const char *problem = machine_line(store, node, &words, &known);
        if (problem == NULL && !known)
            problem = command_line(store, node, &words);
        if (problem != NULL) {
            snprintf(message, sizeof message, "%.*s: %s", (int)(length > 120 ? 120 : length), line, problem);
            return message;
        }
        line += length + (line[length] == '\n');
    }
    return NULL;
}

EXPORT int64_t nvmlsim_create(const char *path, const char *lines, char *answer, uint64_t size)
{
    const char *problem = store_create(path, carry_out, lines);
    if (problem == NULL)
        return 0;
    unlink(path);
    return refuse(answer, size, problem);
}

EXPORT int64_t nvmlsim_apply(const char *path, const char *lines, char *answer, uint64_t size)
{
    struct store store;
    const char *problem = store_open(&store, path);
    if (problem != NULL)
        return refuse(answer, size, problem);
    struct node *node = store_begin_write(&store);
    if (node == NULL) {
        store_close(&store);
        return refuse(answer, size, "the state file cannot be written");
    }
    problem = carry_out(&store, node, lines);
    if (problem == NULL)
        store_commit(&store);
    store_end(&store);
    store_close(&store);
    return problem == NULL ? 0 : refuse(answer, size, problem);
}

EXPORT int64_t nvmlsim_show(const char *path, char *answer, uint64_t size)
{
    struct store store;
    const char *problem = store_open(&store, path);
    if (problem != NULL)
        return refuse(answer, size, problem);
    const struct node *node = store_begin_read(&store);
    uint64_t needed = show_json(&store, node, answer, size);
    store_end(&store);
    store_close(&store);
    return needed < size ? 0 : (int64_t)needed + 1;
}
