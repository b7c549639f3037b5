/* The state as JSON, for `nvmlsim show` and for tests. */
#ifndef NVMLSIM_SHOW_H
#define NVMLSIM_SHOW_H

#include "state.h"

/* Writes at most `size` bytes including the ending zero byte; returns the length of the whole text. */
uint64_t show_json(const struct store *store, const struct node *node, char *text, uint64_t size);

#endif
