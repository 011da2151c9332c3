/* SPDX-License-Identifier: Apache-2.0
 * The system's clocks, a clock that only a test moves, and RFC 3339 text. Thread-safe. */
#include "core/base/clock.h"

#include "core/base/err.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

static const int64_t US_PER_S = 1000000;
static const int64_t S_PER_DAY = 86400;

static int64_t read_clock_us(clockid_t id)
{
	struct timespec ts;
	int r = clock_gettime(id, &ts);
	assert(r == 0);
	(void)r;
	return (int64_t)ts.tv_sec * US_PER_S + ts.tv_nsec / 1000;
}

static int64_t system_wall_us(const struct clock *c)
{
	return read_clock_us(CLOCK_REALTIME);
}

static int64_t system_mono_us(const struct clock *c)
{
	return read_clock_us(CLOCK_MONOTONIC);
}

static int64_t system_boot_us(const struct clock *c)
{
	return read_clock_us(CLOCK_BOOTTIME);
}

const struct clock *clock_system(void)
{
	static const struct clock system_clock = {
		.wall_us = system_wall_us,
		.mono_us = system_mono_us,
		.boot_us = system_boot_us,
	};
	return &system_clock;
}

static int64_t manual_wall_us(const struct clock *c)
{
	return ((const struct clock_manual *)c)->wall_us_now;
}

static int64_t manual_mono_us(const struct clock *c)
{
	return ((const struct clock_manual *)c)->mono_us_now;
}

void clock_manual_init(struct clock_manual *c, int64_t wall_us)
{
	*c = (struct clock_manual){
		.base = { .wall_us = manual_wall_us, .mono_us = manual_mono_us, .boot_us = manual_mono_us },
		.wall_us_now = wall_us,
	};
}

void clock_manual_advance(struct clock_manual *c, int64_t us)
{
	c->wall_us_now += us;
	c->mono_us_now += us;
}

static int64_t floor_div(int64_t a, int64_t b)
{
	return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* Days since 1970-01-01 of a proleptic Gregorian date; the year starts in March so that the leap
 * day is its last. */
static int64_t days_from_civil(int64_t year, int month, int day)
{
	year -= month <= 2;
	int64_t era = floor_div(year, 400);
	int64_t year_of_era = year - era * 400;
	int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
	int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
	return era * 146097 + day_of_era - 719468;
}

static void civil_from_days(int64_t days, int64_t *ret_year, int *ret_month, int *ret_day)
{
	days += 719468;
	int64_t era = floor_div(days, 146097);
	int64_t day_of_era = days - era * 146097;
	int64_t year_of_era =
		(day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
	int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	int64_t shifted_month = (5 * day_of_year + 2) / 153;
	*ret_day = (int)(day_of_year - (153 * shifted_month + 2) / 5 + 1);
	*ret_month = (int)(shifted_month < 10 ? shifted_month + 3 : shifted_month - 9);
	*ret_year = year_of_era + era * 400 + (*ret_month <= 2);
}

/* Writes exactly `digits` digits and what follows them. */
static void put_digits(char **p, int digits, int value, char after)
{
	for (int i = digits - 1; i >= 0; i--) {
		(*p)[i] = (char)('0' + value % 10);
		value /= 10;
	}
	*p += digits;
	*(*p)++ = after;
}

void clock_rfc3339(int64_t wall_us, char ret_text[static CLOCK_RFC3339_MAX])
{
	/* Four digits of year are all that the form has. */
	const int64_t least = days_from_civil(0, 1, 1) * S_PER_DAY * US_PER_S;
	const int64_t most = days_from_civil(10000, 1, 1) * S_PER_DAY * US_PER_S - 1;
	wall_us = wall_us < least ? least : wall_us > most ? most : wall_us;

	int64_t seconds = floor_div(wall_us, US_PER_S);
	int ms = (int)((wall_us - seconds * US_PER_S) / 1000);
	int64_t days = floor_div(seconds, S_PER_DAY);
	int in_day = (int)(seconds - days * S_PER_DAY);
	int64_t year;
	int month, day;
	civil_from_days(days, &year, &month, &day);
	char *p = ret_text;
	put_digits(&p, 4, (int)year, '-');
	put_digits(&p, 2, month, '-');
	put_digits(&p, 2, day, 'T');
	put_digits(&p, 2, in_day / 3600, ':');
	put_digits(&p, 2, in_day / 60 % 60, ':');
	put_digits(&p, 2, in_day % 60, '.');
	put_digits(&p, 3, ms, 'Z');
	*p = '\0';
}

/* Reads exactly `digits` digits and moves *p behind them. */
static bool read_digits(const char **p, int digits, int *ret)
{
	int value = 0;
	for (int i = 0; i < digits; i++) {
		char c = (*p)[i];
		if (c < '0' || c > '9')
			return false;
		value = value * 10 + (c - '0');
	}
	*p += digits;
	*ret = value;
	return true;
}

static bool read_char(const char **p, const char *any_of)
{
	if (**p == '\0' || !strchr(any_of, **p))
		return false;
	(*p)++;
	return true;
}

static int days_in_month(int year, int month)
{
	static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
	bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
	return month == 2 && leap ? 29 : days[month - 1];
}

/* "Z" or "+hh:mm"; the offset in seconds. */
static bool read_offset(const char **p, int *ret_offset_s)
{
	if (read_char(p, "Zz")) {
		*ret_offset_s = 0;
		return true;
	}
	int sign = **p == '-' ? -1 : 1;
	int hours, minutes;
	if (!read_char(p, "+-") || !read_digits(p, 2, &hours) || !read_char(p, ":") ||
		!read_digits(p, 2, &minutes) || hours > 23 || minutes > 59)
		return false;
	*ret_offset_s = sign * (hours * 3600 + minutes * 60);
	return true;
}

int clock_parse_rfc3339(const char *text, int64_t *ret_wall_us)
{
	const char *p = text;
	int year, month, day, hour, minute, second;
	if (!read_digits(&p, 4, &year) || !read_char(&p, "-") || !read_digits(&p, 2, &month) ||
		!read_char(&p, "-") || !read_digits(&p, 2, &day) || !read_char(&p, "Tt") ||
		!read_digits(&p, 2, &hour) || !read_char(&p, ":") || !read_digits(&p, 2, &minute) ||
		!read_char(&p, ":") || !read_digits(&p, 2, &second))
		return ERR_INVALID_VALUE;
	if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month) || hour > 23 ||
		minute > 59 || second > 59)
		return ERR_INVALID_VALUE;

	int64_t fraction_us = 0;
	if (read_char(&p, ".")) {
		int64_t unit = US_PER_S / 10;
		if (*p < '0' || *p > '9')
			return ERR_INVALID_VALUE;
		for (; *p >= '0' && *p <= '9'; p++) {
			if (unit == 0)
				return ERR_INVALID_VALUE;
			fraction_us += (*p - '0') * unit;
			unit /= 10;
		}
	}
	int offset_s;
	if (!read_offset(&p, &offset_s) || *p != '\0')
		return ERR_INVALID_VALUE;
	int64_t seconds = days_from_civil(year, month, day) * S_PER_DAY + hour * 3600 + minute * 60 +
		second - offset_s;
	*ret_wall_us = seconds * US_PER_S + fraction_us;
	return 0;
}
