/* SPDX-License-Identifier: Apache-2.0
 * Planted: two typedefs; one of a function type is fine. */
typedef struct a {
	int x;
} a;
typedef enum { B } b;
typedef int (*callback)(void);
