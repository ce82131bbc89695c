/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H
/*
 * The known word that a misspelt one most likely means, for "did you mean". Words are compared without regard
 * to case, and '-' and blanks count as '_'. Pure, and thread-safe.
 */

/* Zeroed but for the word: no candidate yet. The candidates are borrowed. */
struct nearest {
    const char *word;
    const char *best;  /* NULL: no candidate is near */
    unsigned distance; /* of best */
};

/* Offers a known word. The nearest candidate stays in best; of equal ones, the first. */
void nearest_offer(struct nearest *nearest, const char *candidate);

/* The nearest of a list that ends with NULL, or NULL. */
const char *nearest_word(const char *word, const char *const *candidates);

#endif
