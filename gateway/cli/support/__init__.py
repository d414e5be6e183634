"""Shared code of the commands: options, tables, and access to settings, the database, Redis and the admin API.

deployment                          which gateway, database and Redis a command works on
database_access, index_access       open connections to these; admin_access calls the admin API
options, number_ranges              options of several commands; the ranges of numbers in their help texts
output_files                        checks of the files that options name
result_file                         the file of figures that `--json` names
columns, counts, progress_bar       plain tables; numbers with their nouns; the bar of long commands
index_stats, request_report         the reports of `radixgate index stats` and `radixgate requests`
names_in_file                       notes on names that the settings file has, too
found_workers, quick_start          `radixgate serve --worker`: a start without a settings file
settings_file                       writes the settings file of `init` and `serve --worker`
launch_engine, register_options     `radixgate worker`: launches an engine; registers it in Redis
reported_workers                    the workers as a running gateway reports them
published_ports, free_ports         the ports of launched engines
command_error, event_loop           the error that ends a command; the loop that it runs on
"""
