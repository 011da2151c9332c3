/* SPDX-License-Identifier: Apache-2.0
 * Main may exit. */
int main(void)
{
	exit(1);
}
