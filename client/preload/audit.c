/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgpupool-audit.so: binds the program's references to the CUDA driver to the functions of the preload
 * library (driver.c). The dynamic linker loads it before the program when it is named in LD_AUDIT
 * (rtld-audit(7)), and tells it of each object that it loads and of each reference to libcuda.so.1: those
 * that are bound at load time, and those of dlsym(), by whatever handle. Calls cost nothing: a reference is
 * bound once.
 *
 * It lives in a namespace of its own, with a C library of its own, so it shares nothing with the program. It
 * finds the functions in the dynamic symbols of the preload library, under their names. Without that library
 * in the program it binds nothing.
 *
 * Left out are objects whose driver is the real one: gpupool's own, and libraries for communication, which
 * export and register memory by the driver's segments. CUDA's runtimes are bound as any object.
 *
 * One function of the runtime is bound as well, for one caller: PyTorch's allocator (retries.h).
 *
 * If a report is asked for (the variable GPUPOOL_REPORT, which is in the environment when the linker begins),
 * references to functions that only count (unserved.c) are bound as well, also of those objects but gpupool's
 * own. Without it they are not looked for.
 *
 * The dynamic linker calls it under its own lock.
 */
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/preload/libcuda.h"
#include "client/preload/report.h"
#include "client/preload/retries.h"
#include "client/preload/unserved.h"

#define PRELOAD    "libgpupool-preload.so"
#define NAME_SIZE  128u
#define EXPORT(of) __attribute__((visibility("default"))) of

#define OURS "libgpupool-"

#define ALLOCATOR_LIBRARY "libc10_cuda.so"

/* Wheels that carry a copy of their own call it libcudart-<hash>.so.12. */
static const char *const runtimes[] = {"libcudart.so", "libcudart-"};
static const char *const with_real_driver[] = {"libnccl", "libnvshmem", "libucm",      "libuct",   "libucp",
                                               "libucs",  "libmpi",     "libopen-pal", "libfabric"};

/* An object's cookie. */
enum role {
    PROGRAM,
    ALLOCATOR, /* PyTorch's */
    RUNTIME,
    DRIVER,
    COUNTED, /* is bound to functions that count alone */
    LEFT_OUT,
};

static const struct link_map *preload; /* NULL: not loaded */
static bool has_report;                /* one is asked for */

EXPORT(unsigned la_version(unsigned version));
EXPORT(unsigned la_objopen(struct link_map *object, Lmid_t namespace, uintptr_t *cookie));
EXPORT(uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to,
                              unsigned *flags, const char *name));

static bool begins_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

unsigned la_version(unsigned version) {
    const char *report = getenv(REPORT_VARIABLE);

    has_report = report != NULL && report[0] != '\0';
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

static bool is_one_of(const char *name, const char *const *starts, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (begins_with(name, starts[i]))
            return true;
    return false;
}

static enum role role_of(const char *name) {
    if (begins_with(name, "libcuda.so"))
        return DRIVER;
    if (begins_with(name, OURS))
        return LEFT_OUT;
    if (begins_with(name, ALLOCATOR_LIBRARY))
        return ALLOCATOR;
    if (is_one_of(name, runtimes, sizeof runtimes / sizeof *runtimes))
        return RUNTIME;
    if (is_one_of(name, with_real_driver, sizeof with_real_driver / sizeof *with_real_driver))
        return has_report ? COUNTED : LEFT_OUT;
    return PROGRAM;
}

unsigned la_objopen(struct link_map *object, Lmid_t namespace, uintptr_t *cookie) {
    static const unsigned flags[] = {
        [PROGRAM] = LA_FLG_BINDFROM,
        [ALLOCATOR] = LA_FLG_BINDFROM,
        [RUNTIME] = LA_FLG_BINDFROM | LA_FLG_BINDTO,
        [DRIVER] = LA_FLG_BINDTO,
        [COUNTED] = LA_FLG_BINDFROM,
        [LEFT_OUT] = 0,
    };
    const char *name = base_name(object->l_name);

    if (namespace == LM_ID_BASE && strcmp(name, PRELOAD) == 0)
        preload = object;
    *cookie = namespace == LM_ID_BASE ? role_of(name) : LEFT_OUT;
    return flags[*cookie];
}

/* --- the preload library's symbols --- */

/* DT_GNU_HASH: the header, a filter of words, then buckets and chains of 32 bits. */
struct gnu_hash {
    uint32_t bucket_count, first_symbol, filter_words, filter_shift;
    Elf64_Addr filter[];
};

static uint32_t hash_of(const char *name) {
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* glibc has relocated the addresses in the dynamic section. */
static const void *table(const struct link_map *object, Elf64_Sxword tag) {
    for (const Elf64_Dyn *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == tag)
            return (const void *)entry->d_un.d_ptr; /* NOLINT(performance-no-int-to-ptr): as ELF has it */
    return NULL;
}

/* 0: the library has no such function. */
static uintptr_t address_of(const struct link_map *object, const char *name) {
    const struct gnu_hash *header = table(object, DT_GNU_HASH);
    const Elf64_Sym *symbols = table(object, DT_SYMTAB);
    const char *strings = table(object, DT_STRTAB);
    uint32_t hash = hash_of(name);

    if (header == NULL || symbols == NULL || strings == NULL || header->bucket_count == 0)
        return 0;
    const uint32_t *buckets = (const uint32_t *)(const void *)&header->filter[header->filter_words];
    const uint32_t *chains = buckets + header->bucket_count;
    uint32_t index = buckets[hash % header->bucket_count];
    if (index < header->first_symbol)
        return 0;
    for (;; index++) {
        uint32_t link = chains[index - header->first_symbol]; /* its lowest bit ends the chain */
        if ((link | 1u) == (hash | 1u) && strcmp(strings + symbols[index].st_name, name) == 0)
            return symbols[index].st_shndx == SHN_UNDEF ? 0 : object->l_addr + symbols[index].st_value;
        if ((link & 1u) != 0)
            return 0;
    }
}

/* The preload library's function for one of the driver's, by the prefix of its kind; 0: there is none. */
static uintptr_t function_of(const char *prefix, const char *name) {
    char ours[NAME_SIZE];
    size_t prefix_size = strlen(prefix), size = strlen(name) + 1;

    if (prefix_size + size > sizeof ours)
        return 0;
    memcpy(ours, prefix, prefix_size);
    memcpy(ours + prefix_size, name, size);
    return address_of(preload, ours);
}

static uintptr_t bind_to_driver(enum role from, uintptr_t real, const char *name) {
    uintptr_t address = 0;

    if (!begins_with(name, "cu"))
        return real;
    if (from != COUNTED)
        address = function_of(DRIVER_PREFIX, name);
    if (address == 0 && has_report)
        address = function_of(COUNTED_PREFIX, name);
    return address != 0 ? address : real;
}

/* The preload library finds the real function where it expects it. */
static uintptr_t bind_to_runtime(uintptr_t real, const char *name) {
    if (strcmp(name, RETRIED_CALL) != 0)
        return real;
    uintptr_t function = address_of(preload, RETRIED_FUNCTION), variable = address_of(preload, RETRIED_REAL);
    if (function == 0 || variable == 0)
        return real;
    *(uintptr_t *)variable = real; /* NOLINT(performance-no-int-to-ptr): an address of the linker */
    return function;
}

/* dlsym() comes here also where one side alone has its flag. */
uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags,
                       const char *name) {
    enum role caller = *from, callee = *to;

    (void)index;
    (void)flags;
    if (preload == NULL)
        return symbol->st_value;
    if (callee == DRIVER && caller != DRIVER && caller != LEFT_OUT)
        return bind_to_driver(caller, symbol->st_value, name);
    if (callee == RUNTIME && caller == ALLOCATOR)
        return bind_to_runtime(symbol->st_value, name);
    return symbol->st_value;
}
