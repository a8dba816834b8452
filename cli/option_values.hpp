#pragma once

#include <CLI/CLI.hpp>

namespace packjit {

/// Makes every option of `app` and its subcommands refuse text that the parser would take for something else: '', which
/// is as good as not given, or 0, numbers that are not decimal or have more behind them, and numbers and words behind a
/// flag. What an option takes is its type name, "FILE" or the parser's own "INT". To be called when all options are
/// there.
void check_option_values(CLI::App& app);

}  // namespace packjit
