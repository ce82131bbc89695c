/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is wrong here: every gate lets it pass. */
int planted(int value);

int planted(int value) {
    return value * 2;
}
