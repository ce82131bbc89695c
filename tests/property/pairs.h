/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PROPERTY_PAIRS_H
#define TESTS_PROPERTY_PAIRS_H
/* Pairs, and the model of them: of each side what it holds, how much, whose it is, and which bytes of it were
 * written. */

/* Each has something done to it that chance chooses, and is then compared with its model. */
void pairs_step(void);
/* Clears those that are left. */
void pairs_end(void);

#endif
