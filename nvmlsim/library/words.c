#include "words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int hex_digit(char c)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *at = c == 0 ? NULL : strchr(digits, c);
    return at == NULL ? -1 : (int)(at - digits);
}

static void decode(char *text)
{
    char *to = text;
    for (const char *from = text; *from != 0; to++) {
        if (*from == '%' && hex_digit(from[1]) >= 0 && hex_digit(from[2]) >= 0) {
            *to = (char)(hex_digit(from[1]) * 16 + hex_digit(from[2]));
            from += 3;
        } else {
            *to = *from++;
        }
    }
    *to = 0;
}

bool words_parse(struct words *words, const char *line, uint32_t length)
{
    if (length >= WORDS_SIZE)
        return false;
    memcpy(words->text, line, length);
    words->text[length] = 0;
    words->count = 0;
    char *rest = words->text;
    words->verb = strsep(&rest, " ");
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(word, '=');
        if (value == NULL || words->count == MAX_WORDS)
            return false;
        *value++ = 0;
        decode(value);
        words->keys[words->count] = word;
        words->values[words->count++] = value;
    }
    return true;
}

const char *words_text(const struct words *words, const char *key, const char *otherwise)
{
    for (uint32_t i = 0; i < words->count; i++)
        if (strcmp(words->keys[i], key) == 0)
            return words->values[i];
    return otherwise;
}

uint64_t words_number(const struct words *words, const char *key, uint64_t otherwise)
{
    const char *text = words_text(words, key, NULL);
    return text == NULL ? otherwise : strtoull(text, NULL, 0);
}

uint32_t words_numbers(const struct words *words, const char *key, uint32_t *numbers, uint32_t limit)
{
    const char *text = words_text(words, key, "");
    uint32_t count = 0;
    while (*text != 0 && count < limit) {
        char *end;
        numbers[count++] = (uint32_t)strtoul(text, &end, 0);
        text = *end == ',' ? end + 1 : end;
    }
    return count;
}

void words_copy(const struct words *words, const char *key, char *to, uint32_t size)
{
    const char *text = words_text(words, key, NULL);
    if (text != NULL)
        snprintf(to, size, "%s", text);
}
