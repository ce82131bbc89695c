/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_PROGRAM_H
#define CLIENT_CTL_PROGRAM_H
/*
 * A program that is about to be run, seen from outside: which file it is, and whether the dynamic linker
 * would bring the preload library into it. A script is judged by its interpreter.
 */
#include <stddef.h>

enum program_kind {
    PROGRAM_SERVED = 0, /* as far as can be seen */
    PROGRAM_STATIC,     /* it has no dynamic linker, so nothing can be preloaded */
    PROGRAM_PRIVILEGED, /* set-user-ID or the like: the dynamic linker ignores LD_PRELOAD and LD_AUDIT */
};

/* Finds the file that execvp() would run. Returns 0 and its path in ret_path (size bytes), -ENOENT, or
 * -EACCES where there is one that may not be executed. */
int program_find(const char *name, char *ret_path, size_t size);

/* Judges a file. *ret_path becomes the file that was judged, which for a script is the interpreter (size
 * bytes). A file that cannot be read, or is no ELF file of this machine's word size, counts as
 * PROGRAM_SERVED. */
enum program_kind program_judge(char *path, size_t size);

#endif
