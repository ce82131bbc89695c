/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nearest.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define LENGTH_MAX 48u /* longer words are near none */

/* One mistake in so many letters makes another word. */
#define LETTERS_A_MISTAKE 3u

/* The beginning of a word counts as the word, from so many letters on. */
#define PREFIX_MIN 3u

static char fold(char c) {
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c == '-' || c == ' ' ? '_' : c;
}

static unsigned smaller(unsigned a, unsigned b) {
    return a < b ? a : b;
}

/* How many letters are to be changed, added, left out or swapped with the next one (the optimal string
 * alignment distance). */
static unsigned distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    unsigned rows[3][LENGTH_MAX + 1];
    unsigned *before = rows[0], *last = rows[1], *row = rows[2];

    for (unsigned j = 0; j <= b_length; j++)
        last[j] = before[j] = j;
    for (unsigned i = 1; i <= a_length; i++) {
        row[0] = i;
        for (unsigned j = 1; j <= b_length; j++) {
            char x = fold(a[i - 1]), y = fold(b[j - 1]);
            row[j] = smaller(smaller(last[j], row[j - 1]) + 1, last[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == fold(b[j - 2]) && y == fold(a[i - 2]))
                row[j] = smaller(row[j], before[j - 2] + 1);
        }
        unsigned *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[b_length];
}

static bool is_prefix(const char *word, size_t length, const char *candidate, size_t candidate_length) {
    if (length < PREFIX_MIN || length > candidate_length)
        return false;
    for (size_t i = 0; i < length; i++)
        if (fold(word[i]) != fold(candidate[i]))
            return false;
    return true;
}

void nearest_offer(struct nearest *nearest, const char *candidate) {
    size_t length = strlen(nearest->word), candidate_length = strlen(candidate);

    if (length == 0 || length > LENGTH_MAX || candidate_length > LENGTH_MAX)
        return;
    unsigned mistakes = distance(nearest->word, length, candidate, candidate_length);
    size_t longest = length > candidate_length ? length : candidate_length;
    if (mistakes * LETTERS_A_MISTAKE > longest &&
        !is_prefix(nearest->word, length, candidate, candidate_length))
        return;
    if (nearest->best != NULL && mistakes >= nearest->distance)
        return;
    nearest->best = candidate;
    nearest->distance = mistakes;
}

const char *nearest_word(const char *word, const char *const *candidates) {
    struct nearest nearest = {.word = word};

    for (; *candidates != NULL; candidates++)
        nearest_offer(&nearest, *candidates);
    return nearest.best;
}
