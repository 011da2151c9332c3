/* SPDX-License-Identifier: Apache-2.0
 * Device memory of the cudart stand-in. */
#pragma once

/* Without ASan: looks at the red zones of every allocation; ends the process when one was written
 * to. After each wait for a stream, and at free. */
void memory_check(void);
