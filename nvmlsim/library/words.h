/*
 * One line of the language in which Python tells this library what to do: a verb and key=value words, separated by
 * single spaces; in a value, %XX stands for a byte that would end it.
 */
#ifndef NVMLSIM_WORDS_H
#define NVMLSIM_WORDS_H

#include <stdbool.h>
#include <stdint.h>

enum { MAX_WORDS = 64, WORDS_SIZE = 2048 };

struct words {
    char text[WORDS_SIZE];
    char *verb;
    uint32_t count;
    char *keys[MAX_WORDS], *values[MAX_WORDS];
};

/* False when the line is too long or a word has no "=". */
bool words_parse(struct words *words, const char *line, uint32_t length);
/* The value of `key`, or `otherwise`. */
const char *words_text(const struct words *words, const char *key, const char *otherwise);
uint64_t words_number(const struct words *words, const char *key, uint64_t otherwise);
/* Comma-separated numbers; returns how many, at most `limit`. */
uint32_t words_numbers(const struct words *words, const char *key, uint32_t *numbers, uint32_t limit);
void words_copy(const struct words *words, const char *key, char *to, uint32_t size);

#endif
