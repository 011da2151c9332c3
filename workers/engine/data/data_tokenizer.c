/* SPDX-License-Identifier: Apache-2.0
 * Which tokenizer a data set is read with. Called by the formats of text. */
#include "workers/engine/data/data_private.h"
#include "workers/engine/tokenizer/tokenizer.h"

int data_tokenizer_open(const struct data_source *s, struct tokenizer **ret, struct err *err)
{
	enum spec_tokenizer kind = s->spec->data.tokenizer;
	if (kind == SPEC_TOKENIZER_NONE)
		return err_set(err, ERR_INVALID_DATA, s->param, "text needs a tokenizer");
	cleanup(tokenizer_closep) struct tokenizer *t = NULL;
	int rc;
	if (kind == SPEC_TOKENIZER_BYTES) {
		rc = tokenizer_open_bytes(&t, err);
	} else if (s->tokenizer_path) {
		rc = tokenizer_open(s->tokenizer_path, s->tokenizer_label, "data.tokenizer", &t, err);
	} else {
		rc = err_set(err, ERR_INVALID_DATA, "data.tokenizer", "the tokenizer's file is not there");
	}
	if (rc)
		return rc;
	int64_t have = tokenizer_vocabulary(t), room = s->spec->model.vocab_size;
	if (room > 0 && have > room)
		return err_set(err, ERR_INVALID_DATA, "data.tokenizer",
			"the tokenizer has %lld tokens, the model's vocab_size is %lld", (long long)have,
			(long long)room);
	*ret = take_ptr(t);
	return 0;
}
