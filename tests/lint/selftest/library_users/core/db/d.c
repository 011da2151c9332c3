/* SPDX-License-Identifier: Apache-2.0
 * The user itself. */
#include <libpq-fe.h>
