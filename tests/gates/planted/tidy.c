/* SPDX-License-Identifier: Apache-2.0 */
/* For clang-tidy: the quotient has lost its fraction before it becomes a double. */
double planted(int bytes, int nanoseconds);

double planted(int bytes, int nanoseconds) {
    return bytes / nanoseconds;
}
