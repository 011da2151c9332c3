/* SPDX-License-Identifier: Apache-2.0
 *
 *
 *
 *
 *
 * Planted: too long. */
