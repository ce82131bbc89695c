/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that dies at a place that a test chooses: see test_deaths.py. $GPUPOOL_DIE_FILE has two numbers. At each
 * place the first one that is not 0 becomes one less, and the daemon that makes it 0 dies there. */
#include "daemon/loop/die_here.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void die_here(void) {
    static _Atomic uint64_t *places;

    if (places == NULL) {
        int fd = open(getenv("GPUPOOL_DIE_FILE"), O_RDWR | O_CLOEXEC);
        void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (memory == MAP_FAILED)
            abort();
        places = memory;
    }
    _Atomic uint64_t *place = atomic_load(&places[0]) > 0 ? &places[0] : &places[1];
    if (atomic_load(place) > 0 && atomic_fetch_sub(place, 1) == 1)
        kill(getpid(), SIGKILL);
}
