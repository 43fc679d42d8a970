#include "cli/completion.h"

#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

struct Word {
  std::string name;
  std::string help;
};

// The words that may follow a command. `path` is "", "serve" or "bench codec", for
// example.
struct Place {
  std::string path;
  std::vector<Word> commands;
  std::vector<Word> flags;
};

// A flag that takes one of a few fixed values.
struct Values {
  const char* flag;
  const char* values;
};
constexpr Values kValues[] = {{"--role", "all coordinator server"},
                              {"--output", "table json"},
                              {"-o", "table json"},
                              {"--log-format", "text json"},
                              {"--log-level", "debug info warning error"}};

// Returns the first line. It is enough beside a flag, and a line break would end the
// entry.
std::string ShortHelp(const std::string& help) {
  const std::vector<std::string> lines = absl::StrSplit(help, '\n');
  return lines.front();
}

void Collect(const CLI::App& command, const std::string& path,
             std::vector<Place>& places) {
  Place place;
  place.path = path;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      place.flags.push_back(
          {absl::StrCat("--", name), ShortHelp(option->get_description())});
    }
    for (const std::string& name : option->get_snames()) {
      place.flags.push_back(
          {absl::StrCat("-", name), ShortHelp(option->get_description())});
    }
  }
  const std::vector<const CLI::App*> commands = command.get_subcommands(nullptr);
  for (const CLI::App* sub : commands) {
    place.commands.push_back({sub->get_name(), ShortHelp(sub->get_description())});
  }
  places.push_back(std::move(place));
  for (const CLI::App* sub : commands) {
    Collect(*sub,
            path.empty() ? sub->get_name() : absl::StrCat(path, " ", sub->get_name()),
            places);
  }
}

std::string Names(const std::vector<Word>& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const Word& word) {
    absl::StrAppend(out, word.name);
  });
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// If there is no answer, the shell completes file names: for values of flags, and for the
// program of `syncline run`.
std::string Bash(const std::vector<Place>& places) {
  std::string script =
      "# bash completion of syncline; source <(syncline completion bash)\n"
      "_syncline() {\n"
      "  local path='' commands='' flags='' word previous current i\n"
      "  current=${COMP_WORDS[COMP_CWORD]}\n"
      "  previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    word=${COMP_WORDS[i]}\n"
      "    [[ $word == -- ]] && return\n"
      "    case \"${path:+$path }$word\" in\n";
  for (const Place& place : places) {
    if (place.path.empty()) continue;
    absl::StrAppend(&script, "      '", place.path, "') path='", place.path, "' ;;\n");
  }
  absl::StrAppend(&script, "    esac\n  done\n  case $previous in\n");
  for (const Values& values : kValues) {
    absl::StrAppend(&script, "    ", values.flag, ") COMPREPLY=($(compgen -W '",
                    values.values, "' -- \"$current\")); return ;;\n");
  }
  absl::StrAppend(&script, "  esac\n  case $path in\n");
  for (const Place& place : places) {
    absl::StrAppend(&script, "    '", place.path, "') commands='", Names(place.commands),
                    "' flags='", Names(place.flags), "' ;;\n");
  }
  return absl::StrCat(script,
                      "  esac\n"
                      "  [[ $current == -* ]] && commands=$flags\n"
                      "  COMPREPLY=($(compgen -W \"$commands\" -- \"$current\"))\n"
                      "}\n"
                      "complete -o default -F _syncline syncline\n");
}

std::string ZshWords(const std::vector<Word>& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const Word& word) {
    absl::StrAppend(
        out, Quoted(absl::StrCat(absl::StrReplaceAll(word.name, {{":", "\\:"}}), ":",
                                 word.help)));
  });
}

std::string Zsh(const std::vector<Place>& places) {
  std::string script =
      "#compdef syncline\n"
      "# zsh completion of syncline; source <(syncline completion zsh)\n"
      "_syncline() {\n"
      "  local path_='' word\n"
      "  local -a commands flags\n"
      "  for word in ${words[2,CURRENT-1]}; do\n"
      "    [[ $word == -- ]] && { _files; return }\n"
      "    case \"${path_:+$path_ }$word\" in\n";
  for (const Place& place : places) {
    if (place.path.empty()) continue;
    absl::StrAppend(&script, "      '", place.path, "') path_='", place.path, "' ;;\n");
  }
  absl::StrAppend(&script, "    esac\n  done\n  case $words[CURRENT-1] in\n");
  for (const Values& values : kValues) {
    absl::StrAppend(&script, "    ", values.flag, ") compadd ", values.values,
                    "; return ;;\n");
  }
  absl::StrAppend(&script, "  esac\n  case $path_ in\n");
  for (const Place& place : places) {
    absl::StrAppend(&script, "    '", place.path, "')\n      commands=(",
                    ZshWords(place.commands), ")\n      flags=(", ZshWords(place.flags),
                    ") ;;\n");
  }
  return absl::StrCat(script,
                      "  esac\n"
                      "  if [[ $words[CURRENT] == -* ]]; then\n"
                      "    _describe flag flags\n"
                      "  elif (( $#commands )); then\n"
                      "    _describe command commands\n"
                      "  else\n"
                      "    _files\n"
                      "  fi\n"
                      "}\n"
                      "compdef _syncline syncline\n");
}

std::string Fish(const std::vector<Place>& places) {
  std::string script =
      "# fish completion of syncline; syncline completion fish | source\n"
      "function __syncline_at\n"
      "  set -l words (commandline -opc)\n"
      "  set -l path\n"
      "  for word in $words[2..-1]\n"
      "    string match -q -- '-*' $word; or set -a path $word\n"
      "  end\n"
      "  string match -q -- \"$argv*\" \"$path\"\n"
      "end\n"
      "function __syncline_is\n"
      "  set -l words (commandline -opc)\n"
      "  test \"$words[2..-1]\" = \"$argv\"\n"
      "end\n";
  for (const Place& place : places) {
    for (const Word& command : place.commands) {
      absl::StrAppend(&script, "complete -c syncline -f -n '__syncline_is ", place.path,
                      "' -a ", command.name, " -d ", Quoted(command.help), "\n");
    }
    for (const Word& flag : place.flags) {
      const bool is_long = flag.name.starts_with("--");
      absl::StrAppend(&script, "complete -c syncline -n '__syncline_at ", place.path,
                      "' ", is_long ? "-l " : "-s ", flag.name.substr(is_long ? 2 : 1));
      for (const Values& values : kValues) {
        if (flag.name == values.flag) {
          absl::StrAppend(&script, " -x -a ", Quoted(values.values));
        }
      }
      absl::StrAppend(&script, " -d ", Quoted(flag.help), "\n");
    }
  }
  return script;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const CLI::App& app,
                                             const std::string& shell) {
  std::vector<Place> places;
  Collect(app, "", places);
  if (shell == "bash") return Bash(places);
  if (shell == "zsh") return Zsh(places);
  if (shell == "fish") return Fish(places);
  return WithFailure(
      absl::InvalidArgumentError(
          shell.empty() ? "completion needs the name of a shell: bash, zsh or fish"
                        : absl::StrCat("no completion for shell '", shell,
                                       "'; there is one for bash, zsh and fish")),
      Failure::kUsage);
}

void AddCompletion(CLI::App& app, Command* selected) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand(
      "completion", "Print a script that completes commands and flags in a shell");
  completion->add_option("shell", *shell, "bash, zsh or fish");
  completion->callback([&app, selected, shell] {
    *selected = [&app, shell]() -> absl::StatusOr<int> {
      SYNCLINE_ASSIGN_OR_RETURN(const std::string script, CompletionScript(app, *shell));
      std::cout << script << std::flush;
      return kExitDone;
    };
  });
}

}  // namespace syncline
