/* Marks the operations of a program, so that an oracle knows what was acknowledged before a crash.
 * Without the recorder, both functions are absent and the macros do nothing.
 */
#ifndef CRASHTEST_H
#define CRASHTEST_H

__attribute__((weak)) void crashtest_begin(unsigned operation);
__attribute__((weak)) void crashtest_end(unsigned operation);

#define CRASHTEST_BEGIN(n) do { if (crashtest_begin) crashtest_begin(n); } while (0)
#define CRASHTEST_END(n) do { if (crashtest_end) crashtest_end(n); } while (0)

#endif
