/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_THREAD_H
#define CLIENT_SESSION_THREAD_H
/*
 * The calling thread's state. All of the client's thread-local storage is one object, which one function
 * finds: a fast path looks for it once.
 *
 * A program may load the library late, as plug-ins and Python do, and then it has no room for static
 * thread-local storage. TLS descriptors are as fast as that where the library was there from the start, and
 * they are the default of most processors but x86-64. There a compiler that uses them (-mtls-dialect=gnu2)
 * takes the access to change one register. But glibc before 2.40 changes vector registers when a thread comes
 * to such storage for the first time, or for the first time since another library was loaded (BZ 31372), and
 * a structure that was about to be copied then has zeros in it. So the access is written out here, and names
 * them.
 */
#include <stdbool.h>
#include <stdint.h>

struct thread_cache;

/* The daemon's longest text (PROTO_TEXT_MAX) and half as much for what the library puts in front of it. */
#define ERROR_TEXT_SIZE 1536u

struct client_thread {
    struct thread_cache
        *caches; /* of this thread; the first one is the one used last (cache/thread_cache.h) */
    int error;   /* of the thread's last public call; 0: it did not fail (error.h) */
    char error_text[ERROR_TEXT_SIZE];
    uint64_t number;      /* fence_thread_number(); 0: none yet */
    uint64_t call_end_ns; /* call_time.h; 0: the thread is in no call that has a timeout */
    bool until_signal;    /* its exchanges end with CANCELLED when a signal came */
    bool until_away;      /* its exchanges end with TIMED_OUT when the daemon has ended (alive.h) */
};

extern _Thread_local struct client_thread client_thread_itself;

#if defined(GPUPOOL_TLS_DESCRIPTORS) && defined(__x86_64__)
#if defined(__AVX512F__)
#define THREAD_MORE_REGISTERS                                                                                \
    , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26",     \
        "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#else
#define THREAD_MORE_REGISTERS
#endif

/* While the stack pointer is another one, a debugger, a profiler and backtrace() find the frame by rbx. */
#if defined(__GCC_HAVE_DWARF2_CFI_ASM)
#define THREAD_FRAME_BY_RBX "\n\t.cfi_remember_state\n\t.cfi_def_cfa %%rbx, 0"
#define THREAD_FRAME_AGAIN  "\n\t.cfi_restore_state"
#else
#define THREAD_FRAME_BY_RBX
#define THREAD_FRAME_AGAIN
#endif

/* All calls of a thread return one object. Both instructions are as the linker knows them: it replaces them
 * in a program. The call has a stack as the ABI has it, below what the compiler may keep there (128 bytes).
 */
static inline struct client_thread *client_thread(void) {
    char *thread_pointer, *offset;
    void *stack;

    __asm__("movq %%rsp, %1" THREAD_FRAME_BY_RBX "\n\t"
            "leaq -128(%%rsp), %%rsp\n\t"
            "andq $-16, %%rsp\n\t"
            "leaq client_thread_itself@tlsdesc(%%rip), %%rax\n\t"
            "call *client_thread_itself@tlscall(%%rax)\n\t"
            "movq %1, %%rsp" THREAD_FRAME_AGAIN
            : "=&a"(offset), "=&r"(stack)
            : "b"(__builtin_dwarf_cfa())
            : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
              "xmm11", "xmm12", "xmm13", "xmm14", "xmm15" THREAD_MORE_REGISTERS);
    __asm__("movq %%fs:0, %0" : "=r"(thread_pointer));
    return (struct client_thread *)(thread_pointer + (intptr_t)offset);
}
#else
/* All calls of a thread return one object. */
static inline struct client_thread *client_thread(void) {
    return &client_thread_itself;
}
#endif

#endif
