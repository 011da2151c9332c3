/* SPDX-License-Identifier: Apache-2.0 */
static const struct number NUMBERS[] = {
	NUMBER(epochs, 0.001, 10, 1),
	NUMBER(dropout, 0, 0.95, 0),
};
