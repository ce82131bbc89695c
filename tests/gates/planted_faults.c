/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One fault of each kind that sanitizers and valgrind are there for, chosen by the first argument. Without
 * them each goes unnoticed and the program ends with 0.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile unsigned hidden; /* what the compiler must not know */
static unsigned shared;
static char *volatile kept;

static void overflow(void) {
    char *bytes = malloc(16);
    kept = bytes;
    bytes[16 + hidden] = 1; /* inside what malloc really gives */
    free(bytes);
}

static void use_after_free(void) {
    char *bytes = calloc(1, 16);
    kept = bytes;
    free(bytes);
    hidden = hidden * (unsigned)kept[0];
}

static void leak(void) {
    kept = malloc(16 + hidden);
    kept = NULL;
}

static void shift(void) {
    hidden = 1u << (hidden + 32);
    hidden = 0;
}

static void uninitialized(void) {
    char *bytes = malloc(16 + hidden);
    kept = bytes;
    if (kept[3] == 7)
        puts("a coincidence");
    free(bytes);
}

static void *count(void *unused) {
    (void)unused;
    for (unsigned i = 0; i < 1000; i++)
        shared++;
    return NULL;
}

static void race(void) {
    pthread_t thread;

    if (pthread_create(&thread, NULL, count, NULL) != 0)
        exit(1);
    count(NULL);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*commit)(void);
    } faults[] = {{"overflow", overflow}, {"use_after_free", use_after_free}, {"leak", leak},
                  {"shift", shift},       {"uninitialized", uninitialized},   {"race", race}};

    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (argc == 2 && strcmp(argv[1], faults[i].name) == 0) {
            faults[i].commit();
            return 0;
        }
    fprintf(stderr, "usage: %s FAULT\n", argv[0]);
    return 2;
}
