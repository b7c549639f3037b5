/* Reads a machine's description, line by line, into the state. */
#ifndef NVMLSIM_MACHINE_H
#define NVMLSIM_MACHINE_H

#include "state.h"
#include "words.h"

/* Returns NULL when the verb was one of a description and was done; else a message. `*known` says which. */
const char *machine_line(struct store *store, struct node *node, const struct words *words, bool *known);

#endif
