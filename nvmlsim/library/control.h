/* What `nvmlsim` does to a node from outside; the only functions of the library that are not NVML's. */
#ifndef NVMLSIM_CONTROL_H
#define NVMLSIM_CONTROL_H

#include <stdint.h>

/*
 * Each returns 0, or -1 with a message in `answer` (ended by a zero byte, cut at `size`).
 * nvmlsim_create makes the state file from a machine description. nvmlsim_apply carries out a list of lines as one
 * change: all of them or none. nvmlsim_show answers the state as JSON; when `size` is too small it returns the size
 * needed instead of 0.
 */
int64_t nvmlsim_create(const char *path, const char *lines, char *answer, uint64_t size);
int64_t nvmlsim_apply(const char *path, const char *lines, char *answer, uint64_t size);
int64_t nvmlsim_show(const char *path, char *answer, uint64_t size);

#endif
