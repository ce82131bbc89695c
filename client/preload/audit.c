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
 * Left out are objects whose driver is the real one: gpupool's own; the shared runtime, whose callers the
 * preload library serves; and libraries for communication, which export and register memory by the driver's
 * segments.
 *
 * The dynamic linker calls it under its own lock.
 */
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "client/preload/libcuda.h"

#define PRELOAD    "libgpupool-preload.so"
#define NAME_SIZE  128u
#define EXPORT(of) __attribute__((visibility("default"))) of

static const char *const left_out[] = {"libgpupool-", "libcudart.so", "libcudart-", "libnccl", "libnvshmem"};

/* An object's cookie. */
enum role {
    PROGRAM,
    DRIVER,
    LEFT_OUT,
};

static const struct link_map *preload; /* NULL: not loaded */

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
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

static enum role role_of(const char *name) {
    if (begins_with(name, "libcuda.so"))
        return DRIVER;
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (begins_with(name, left_out[i]))
            return LEFT_OUT;
    return PROGRAM;
}

unsigned la_objopen(struct link_map *object, Lmid_t namespace, uintptr_t *cookie) {
    static const unsigned flags[] = {[PROGRAM] = LA_FLG_BINDFROM, [DRIVER] = LA_FLG_BINDTO, [LEFT_OUT] = 0};
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

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags,
                       const char *name) {
    char ours[NAME_SIZE] = DRIVER_PREFIX;
    size_t length = strlen(name);

    (void)index;
    (void)flags;
    /* dlsym() comes here also where one side alone has its flag */
    if (*from != PROGRAM || *to != DRIVER || preload == NULL || !begins_with(name, "cu") ||
        length >= sizeof ours - strlen(DRIVER_PREFIX))
        return symbol->st_value;
    memcpy(ours + strlen(DRIVER_PREFIX), name, length + 1);
    uintptr_t address = address_of(preload, ours);
    return address != 0 ? address : symbol->st_value;
}
