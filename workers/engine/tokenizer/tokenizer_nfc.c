/* SPDX-License-Identifier: Apache-2.0
 * Unicode's normal form C: characters decompose, their marks are put in order, and what can be one
 * character becomes one. Called by tokenizer_encode.c; any thread. */
#include "core/base/utf8.h"
#include "workers/engine/tokenizer/tokenizer_nfc_data.h"
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
	FIRST_ACTIVE = 0x300, /* below, every character is its own normal form and no mark */
	ACTIVE_END = 0x30000, /* and from here on */
	HANGUL_SYLLABLES = 0xac00,
	HANGUL_COUNT = 11172,
	HANGUL_L = 0x1100,
	HANGUL_L_COUNT = 19,
	HANGUL_V = 0x1161,
	HANGUL_V_COUNT = 21,
	HANGUL_T = 0x11a7, /* one before the first: 0 means none */
	HANGUL_T_COUNT = 28,
	DECOMPOSED_MAX = 4, /* characters that one becomes */
	INSERTION_MAX = 32, /* marks in a row that are put in order one by one */
};

/* Bits of the characters that a normalizer has to look at, and the pairs in order. */
static unsigned char active[ACTIVE_END / 8];
static uint16_t by_pair[TOKENIZER_DECOMPOSITIONS];
static int pairs;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void mark_active(uint32_t c)
{
	active[c / 8] |= (unsigned char)(1 << c % 8);
}

static int compare_pairs(const void *a, const void *b)
{
	const struct tokenizer_decomposition *x = &tokenizer_decompositions[*(const uint16_t *)a];
	const struct tokenizer_decomposition *y = &tokenizer_decompositions[*(const uint16_t *)b];
	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return (x->second > y->second) - (x->second < y->second);
}

static void prepare(void)
{
	for (int i = 0; i < TOKENIZER_DECOMPOSITIONS; i++) {
		const struct tokenizer_decomposition *d = &tokenizer_decompositions[i];
		if (d->composes) {
			by_pair[pairs++] = (uint16_t)i;
			mark_active(d->second);
		} else {
			mark_active(d->code);
		}
	}
	qsort(by_pair, (size_t)pairs, sizeof(by_pair[0]), compare_pairs);
	for (int i = 0; i < TOKENIZER_IDEOGRAPHS_BMP; i++)
		if (tokenizer_ideographs_bmp[i])
			mark_active((uint32_t)(TOKENIZER_IDEOGRAPHS_BMP_FIRST + i));
	for (int i = 0; i < TOKENIZER_IDEOGRAPHS_SIP; i++)
		if (tokenizer_ideographs_sip[i])
			mark_active((uint32_t)(TOKENIZER_IDEOGRAPHS_SIP_FIRST + i));
	for (int i = 0; i < TOKENIZER_CLASSES; i++)
		for (uint32_t c = tokenizer_classes[i].first; c <= tokenizer_classes[i].last; c++)
			mark_active(c);
	for (uint32_t c = HANGUL_V; c < HANGUL_V + HANGUL_V_COUNT; c++)
		mark_active(c);
	for (uint32_t c = HANGUL_T + 1; c < HANGUL_T + HANGUL_T_COUNT; c++)
		mark_active(c);
}

/* Whether the normal form of a text before this character never depends on it. */
static bool inert(uint32_t c)
{
	return c < FIRST_ACTIVE || c >= ACTIVE_END || !(active[c / 8] >> c % 8 & 1);
}

static uint32_t decode(const char *s, size_t *ret_bytes)
{
	const unsigned char *u = (const unsigned char *)s;
	*ret_bytes = u[0] < 0x80 ? 1 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
	switch (*ret_bytes) {
	case 1: return u[0];
	case 2: return (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3fU);
	case 3: return (uint32_t)(u[0] & 0x0f) << 12 | (u[1] & 0x3fU) << 6 | (u[2] & 0x3fU);
	default:
		return (uint32_t)(u[0] & 0x07) << 18 | (u[1] & 0x3fU) << 12 | (u[2] & 0x3fU) << 6 |
			(u[3] & 0x3fU);
	}
}

static void put(struct buf *out, uint32_t c)
{
	if (c < 0x80) {
		buf_char(out, (char)c);
		return;
	}
	if (c < 0x800) {
		buf_char(out, (char)(0xc0 | c >> 6));
	} else {
		if (c < 0x10000) {
			buf_char(out, (char)(0xe0 | c >> 12));
		} else {
			buf_char(out, (char)(0xf0 | c >> 18));
			buf_char(out, (char)(0x80 | (c >> 12 & 63)));
		}
		buf_char(out, (char)(0x80 | (c >> 6 & 63)));
	}
	buf_char(out, (char)(0x80 | (c & 63)));
}

static int class_of(uint32_t c)
{
	int low = 0, high = TOKENIZER_CLASSES - 1;
	while (low <= high) {
		int middle = (low + high) / 2;
		const struct tokenizer_class *x = &tokenizer_classes[middle];
		if (c < x->first)
			high = middle - 1;
		else if (c > x->last)
			low = middle + 1;
		else
			return x->combining;
	}
	return 0;
}

static const struct tokenizer_decomposition *find_decomposition(uint32_t c)
{
	int low = 0, high = TOKENIZER_DECOMPOSITIONS - 1;
	while (low <= high) {
		int middle = (low + high) / 2;
		const struct tokenizer_decomposition *d = &tokenizer_decompositions[middle];
		if (c == d->code)
			return d;
		if (c < d->code)
			high = middle - 1;
		else
			low = middle + 1;
	}
	return NULL;
}

static uint32_t ideograph(uint32_t c)
{
	if (c >= TOKENIZER_IDEOGRAPHS_BMP_FIRST &&
		c < TOKENIZER_IDEOGRAPHS_BMP_FIRST + TOKENIZER_IDEOGRAPHS_BMP)
		return tokenizer_ideographs_bmp[c - TOKENIZER_IDEOGRAPHS_BMP_FIRST];
	if (c >= TOKENIZER_IDEOGRAPHS_SIP_FIRST &&
		c < TOKENIZER_IDEOGRAPHS_SIP_FIRST + TOKENIZER_IDEOGRAPHS_SIP)
		return tokenizer_ideographs_sip[c - TOKENIZER_IDEOGRAPHS_SIP_FIRST];
	return 0;
}

/* All the way down. Hangul syllables stay: they would come together again, but for one that a final
 * consonant can still join, which compose() knows. */
static int decompose(uint32_t c, uint32_t into[static DECOMPOSED_MAX])
{
	int n = 0;
	uint32_t tail[DECOMPOSED_MAX];
	int tails = 0;
	for (;;) {
		uint32_t other = ideograph(c);
		const struct tokenizer_decomposition *d = other ? NULL : find_decomposition(c);
		if (other) {
			c = other;
		} else if (d) {
			if (d->second)
				tail[tails++] = d->second;
			c = d->first;
		} else {
			into[n++] = c;
			break;
		}
	}
	/* The second of a pair never decomposes further but for two marks of Greek. */
	while (tails > 0) {
		uint32_t second = tail[--tails];
		const struct tokenizer_decomposition *d = find_decomposition(second);
		into[n++] = d ? d->first : second;
		if (d && d->second)
			into[n++] = d->second;
	}
	return n;
}

static uint32_t compose(uint32_t a, uint32_t b)
{
	if (a >= HANGUL_L && a < HANGUL_L + HANGUL_L_COUNT && b >= HANGUL_V &&
		b < HANGUL_V + HANGUL_V_COUNT)
		return HANGUL_SYLLABLES +
			((a - HANGUL_L) * HANGUL_V_COUNT + (b - HANGUL_V)) * HANGUL_T_COUNT;
	if (a >= HANGUL_SYLLABLES && a < HANGUL_SYLLABLES + HANGUL_COUNT &&
		(a - HANGUL_SYLLABLES) % HANGUL_T_COUNT == 0 && b > HANGUL_T &&
		b < HANGUL_T + HANGUL_T_COUNT)
		return a + (b - HANGUL_T);
	int low = 0, high = pairs - 1;
	while (low <= high) {
		int middle = (low + high) / 2;
		const struct tokenizer_decomposition *d = &tokenizer_decompositions[by_pair[middle]];
		if (a == d->first && b == d->second)
			return d->code;
		if (a < d->first || (a == d->first && b < d->second))
			high = middle - 1;
		else
			low = middle + 1;
	}
	return 0;
}

struct mark {
	uint32_t code;
	int combining;
	size_t order;
};

static int compare_marks(const void *a, const void *b)
{
	const struct mark *x = a, *y = b;
	if (x->combining != y->combining)
		return x->combining < y->combining ? -1 : 1;
	return (x->order > y->order) - (x->order < y->order);
}

/* Marks between two starters by their class, otherwise as they came. */
static void put_in_order(struct mark *m, size_t count)
{
	for (size_t begin = 0; begin < count;) {
		if (m[begin].combining == 0) {
			begin++;
			continue;
		}
		size_t end = begin;
		while (end < count && m[end].combining != 0)
			end++;
		if (end - begin > INSERTION_MAX) {
			qsort(m + begin, end - begin, sizeof(*m), compare_marks);
		} else {
			for (size_t i = begin + 1; i < end; i++) {
				struct mark x = m[i];
				size_t k = i;
				for (; k > begin && m[k - 1].combining > x.combining; k--)
					m[k] = m[k - 1];
				m[k] = x;
			}
		}
		begin = end;
	}
}

static size_t compose_all(struct mark *m, size_t count)
{
	size_t n = 0, starter = SIZE_MAX;
	int last = -1; /* class of what stands between the starter and here; -1: nothing */
	for (size_t i = 0; i < count; i++) {
		uint32_t one =
			starter != SIZE_MAX && last < m[i].combining ? compose(m[starter].code, m[i].code) : 0;
		if (one) {
			m[starter].code = one;
			continue;
		}
		if (m[i].combining == 0) {
			starter = n;
			last = -1;
		} else {
			last = m[i].combining;
		}
		m[n++] = m[i];
	}
	return n;
}

size_t tokenizer_nfc_cut(const char *text, size_t bytes, size_t from)
{
	pthread_once(&once, prepare);
	while (from < bytes) {
		size_t n;
		if (((unsigned char)text[from] & 0xc0) != 0x80 && inert(decode(text + from, &n)))
			return from;
		from++;
	}
	return bytes;
}

int tokenizer_nfc(const char *text, size_t bytes, struct buf *out)
{
	pthread_once(&once, prepare);
	size_t cap = 0;
	cleanup(freep) struct mark *m = NULL;
	for (size_t at = 0; at < bytes;) {
		size_t first, end;
		(void)decode(text + at, &first);
		end = tokenizer_nfc_cut(text, bytes, at + first);
		if (end == at + first && inert(decode(text + at, &first))) {
			buf_append(out, text + at, first);
			at = end;
			continue;
		}
		if (end - at > TOKENIZER_NFC_RUN_MAX_BYTES)
			return ERR_INVALID_DATA;
		if (cap < (end - at) * DECOMPOSED_MAX) {
			free(m);
			cap = (end - at) * DECOMPOSED_MAX * 2;
			m = malloc(cap * sizeof(*m));
			if (!m)
				return ERR_NO_MEMORY;
		}
		size_t count = 0;
		for (size_t n; at < end; at += n) {
			uint32_t into[DECOMPOSED_MAX];
			int became = decompose(decode(text + at, &n), into);
			for (int i = 0; i < became; i++, count++)
				m[count] = (struct mark){ into[i], class_of(into[i]), count };
		}
		put_in_order(m, count);
		count = compose_all(m, count);
		for (size_t i = 0; i < count; i++)
			put(out, m[i].code);
	}
	return out->failed;
}

size_t tokenizer_nfc_prefix(const char *text, size_t bytes)
{
	pthread_once(&once, prepare);
	cleanup(buf_finish) struct buf out = { 0 };
	buf_init(&out, SIZE_MAX / 2);
	size_t before = 0; /* the last place where the text may be cut */
	for (size_t at = 0, n; at < bytes; at += n) {
		if ((unsigned char)text[at] < 0x80) {
			before = at;
			n = 1;
			continue;
		}
		if (inert(decode(text + at, &n))) {
			before = at;
			continue;
		}
		size_t end = tokenizer_nfc_cut(text, bytes, at + n);
		buf_reset(&out);
		if (tokenizer_nfc(text + before, end - before, &out) || out.len != end - before ||
			memcmp(out.data, text + before, out.len) != 0)
			return before;
		n = end - at;
		before = end;
	}
	return bytes;
}
