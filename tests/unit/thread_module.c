/* SPDX-License-Identifier: Apache-2.0 */
/* A library with a thread's state of its own, as the client has it (client/session/thread.h), for programs
 * that load it late. With DIRECT the access is the compiler's own. */
#include "client/session/thread.h"

__attribute__((used)) _Thread_local struct client_thread client_thread_itself;

#ifdef DIRECT
#define HERE() (&client_thread_itself)
#else
#define HERE() client_thread()
#endif

typedef long long vector __attribute__((vector_size(16)));

/* Looks for the thread's state while vectors are in use. Returns how many of them are changed by that. */
__attribute__((visibility("default"))) int count_changed_vectors(void);

int count_changed_vectors(void) {
    vector a = {1, 2}, b = {3, 4}, c = {5, 6}, d = {7, 8};
    const vector kept[] = {a, b, c, d};

    __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));
    struct client_thread *thread = HERE();
    __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d) : "r"(thread) : "memory");
    const vector now[] = {a, b, c, d};
    int changed = 0;
    for (unsigned i = 0; i < 4; i++)
        changed += now[i][0] != kept[i][0] || now[i][1] != kept[i][1];
    thread->number++;
    return thread->number == 1 ? changed : -1;
}
