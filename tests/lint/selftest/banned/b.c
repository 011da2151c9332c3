/* SPDX-License-Identifier: Apache-2.0
 * Planted: banned calls; not in comments (strcpy(a, b)), strings or longer names. */
int f(char *a, const char *b)
{
	strcpy(a, b);
	puts("sprintf(");
	my_strcat(a, b);
	return atoi(a) + snprintf(a, 1, "x");
}
void g(void)
{
	exit(1);
	_exit(1);
}
