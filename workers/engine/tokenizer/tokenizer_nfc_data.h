/* SPDX-License-Identifier: Apache-2.0
 * Tables of the normal form C, sorted by code point. Read by tokenizer_nfc.c. */
#pragma once

#include <stdint.h>

enum {
	TOKENIZER_DECOMPOSITIONS = 1058,
	TOKENIZER_IDEOGRAPHS_BMP_FIRST = 0xf900, /* one ideograph for each; 0: stays */
	TOKENIZER_IDEOGRAPHS_BMP = 474,
	TOKENIZER_IDEOGRAPHS_SIP_FIRST = 0x2f800,
	TOKENIZER_IDEOGRAPHS_SIP = 542,
	TOKENIZER_CLASSES = 333,
};

struct tokenizer_decomposition {
	uint32_t code, first, second; /* second 0: one character for another */
	int composes;                 /* the two become one again */
};
struct tokenizer_class {
	uint32_t first, last;
	int combining; /* 1 to 254 */
};

extern const struct tokenizer_decomposition tokenizer_decompositions[TOKENIZER_DECOMPOSITIONS];
extern const uint32_t tokenizer_ideographs_bmp[TOKENIZER_IDEOGRAPHS_BMP];
extern const uint32_t tokenizer_ideographs_sip[TOKENIZER_IDEOGRAPHS_SIP];
extern const struct tokenizer_class tokenizer_classes[TOKENIZER_CLASSES];
