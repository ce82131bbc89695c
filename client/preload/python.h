/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_PYTHON_H
#define CLIENT_PRELOAD_PYTHON_H
/*
 * Memory in PyTorch's cache is in use for gpupool: PyTorch frees it when it is told to, by
 * torch.cuda.empty_cache(). So when the daemon asks for idle memory, a process that runs Python with PyTorch
 * calls that, on Python's main thread, between two instructions of the program, as Python runs a signal's
 * handler. Nothing is called while the current stream is captured into a graph. A main thread that is inside
 * a long call comes to it afterwards. Other programs are left alone.
 */

/* For gpupool_options.reclaim: schedules the call, unless one is scheduled already. On the library's thread.
 */
void python_reclaim(void *argument);

void python_after_fork(void);

#endif
