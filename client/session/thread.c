/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/thread.h"

_Thread_local struct client_thread client_thread_itself;
