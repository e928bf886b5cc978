/*
 * How a line of a log says something: as an exception, a complaint, a remark, an echo. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether a line says how something failed: an exception at its place, or an error of a command
 * line. Code that a traceback shows is none. */
bool doctor_level_raises(const char *line, size_t len);
/* A logger's sentence that ends in an exception: "ERROR Failed to import python tokenizer
 * ModuleNotFoundError: ...". The program has caught it. */
bool doctor_level_quotes(const char *line, size_t len);
/* "WARNING", "INFO", "DEBUG" in the prefix: the program went on. */
bool doctor_level_mild(const char *line, size_t len);
/* "INFO" or "DEBUG" there, and the words from byte `at` to `end` lie in an option or its value:
 * what may happen is named, nothing has. */
bool doctor_level_option(const char *line, size_t len, size_t at, size_t end);
/* What follows when another process or task has ended. */
bool doctor_level_echo(const char *line, size_t len);
/* Such a line that names no exception and no abort, only "error: ". */
bool doctor_level_plain(const char *line, size_t len);
/* A class of an exception with its modules, whatever its name: "subprocess.TimeoutExpired: ...". */
bool doctor_level_class(const char *line, size_t len);
/* Its own level is a warning, and it raises nothing. NCCL's "WARN" counts here. */
bool doctor_level_warns(const char *line, size_t len);
/* "WARN" in a field of its own: "[WARN ]", "level=WARN", "Z  WARN text_generation_launcher". The
 * word of NCCL is none, which has no other level for its errors. */
bool doctor_level_warning(const char *line, size_t len);
/* "ERROR", "CRITICAL" or "FATAL" stands among its first `before` bytes. */
bool doctor_level_above(const char *line, size_t len, size_t before);
/* A line of a program's source, as people paste it beside a log. */
bool doctor_level_source(const char *line, size_t len);
