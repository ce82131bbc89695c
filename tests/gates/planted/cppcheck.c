/* SPDX-License-Identifier: Apache-2.0 */
/* For cppcheck: the loop goes one element too far. */
int planted(const int *values);

int planted(const int *values) {
    int copies[4];

    for (int i = 0; i <= 4; i++)
        copies[i] = values[i];
    return copies[0];
}
