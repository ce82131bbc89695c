/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PLUGINS_THROW_H
#define CLIENT_PLUGINS_THROW_H
/*
 * Failures of hooks that are called from C++, by callers that do not look at what a hook returns. Such a hook
 * throws. The plug-ins are C, so the C++ library of the process throws for them. Callers are compiled with
 * -fexceptions: the exception passes through them.
 */

/* Throws std::runtime_error with a text. Returns where the process has no libstdc++: there is then no caller
 * in C++ either. Thread-safe. */
void plugin_throw(const char *text);

#endif
