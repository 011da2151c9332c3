/* SPDX-License-Identifier: Apache-2.0
 * Planted: libjwt outside its one file. */
#include <jwt.h>
