/* SPDX-License-Identifier: Apache-2.0
 * Tells a training that has come apart from one that is merely noisy. A loss is high when it
 * exceeds the median of the last 100 calm losses by that median again, and by 30 % of where the
 * training began at the least. Ten high steps in a row are worth a word, a hundred end the job:
 * what follows would be paid for and useless. Pure; fed by the loop. */
#pragma once

#include <stdint.h>

enum {
	SPIKE_WINDOW = 100, /* calm losses whose median is the measure; none is judged before */
	SPIKE_FIRST = 10,   /* losses whose median is where the training began */
	SPIKE_WARN_STEPS = 10,
	SPIKE_FAIL_STEPS = 100,
};

enum spike_verdict { SPIKE_CALM, SPIKE_WARN, SPIKE_FAIL }; /* WARN once for each row of highs */

struct spike {
	double window[SPIKE_WINDOW];
	double first[SPIKE_FIRST];
	int64_t calm; /* losses that went into the window */
	int64_t seen;
	int64_t high; /* in a row */
};

/* Zero-initialised: nothing seen. *ret_limit: what the loss was compared with; 0 when it was not.
 */
enum spike_verdict spike_step(struct spike *s, double loss, double *ret_limit);
