/* What can be done to a running node. */
#ifndef NVMLSIM_COMMANDS_H
#define NVMLSIM_COMMANDS_H

#include "state.h"
#include "words.h"

/* Returns NULL, or a message saying what is wrong with the command or why it was refused. */
const char *command_line(struct store *store, struct node *node, const struct words *words);

#endif
