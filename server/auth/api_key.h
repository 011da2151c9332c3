/* SPDX-License-Identifier: Apache-2.0
 * The text of API keys: "ty_", 160 random bits in base 32 (Crockford, 32 characters), and a CRC-32
 * tail (7 characters) that tells a mistyped key from an unknown one without asking the database.
 * Thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/crypto/digest.h"

#include <stdbool.h>

enum {
	API_KEY_RANDOM_BYTES = 20,
	API_KEY_LEN = 3 + 32 + 7,
	API_KEY_MAX = API_KEY_LEN + 1,
	API_KEY_SHOWN_MAX = 16,
};

/* A fresh key: the text (shown once), its SHA-256 (what is stored), and "ty_…abcd" for people. */
int api_key_make(char ret_key[static API_KEY_MAX], unsigned char ret_hash[static DIGEST_BYTES],
	char ret_redacted[static API_KEY_SHOWN_MAX]) must_check;

/* True when the text has the form of a key and its tail is right. */
bool api_key_is_well_formed(const char *text);

/* SHA-256 of the whole key. */
int api_key_hash(const char *text, unsigned char ret_hash[static DIGEST_BYTES]) must_check;
