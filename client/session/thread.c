/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/thread.h"

/* used: code written in assembler names it, which optimisation at link time does not see. */
__attribute__((used)) _Thread_local struct client_thread client_thread_itself;
