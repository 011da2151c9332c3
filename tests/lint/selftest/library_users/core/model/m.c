/* SPDX-License-Identifier: Apache-2.0
 * Planted: three libraries that belong to other rooms. */
#include <jansson.h>
#include <libpq-fe.h>
#include <openssl/evp.h>
