/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PROPERTY_ARRAYS_H
#define TESTS_PROPERTY_ARRAYS_H
/* Synchronised arrays, and the model of them: one vector of bytes, which side has them, and how many copies
 * that took. */

/* Each has something done to it that chance chooses, and is then compared with its model. */
void arrays_step(void);
/* Destroys those that are left. */
void arrays_end(void);

#endif
