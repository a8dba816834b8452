#include "tuning/worker_bench.hpp"

#include <fmt/format.h>

#include <istream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>
#include <utility>

#include "database/record_json.hpp"
#include "runtime/errors.hpp"
#include "tuning/trial_json.hpp"

namespace packjit {

using nlohmann::json;

/// What became of a question. Without `value` the worker is gone, and `why` says how.
struct WorkerBench::Answer {
  std::optional<json> value;
  std::string why;
  std::optional<std::size_t> candidate;  ///< the one in use last
};

WorkerBench::WorkerBench(WorkerSettings settings) : settings_(std::move(settings)) { start(); }

WorkerBench::~WorkerBench() = default;

void WorkerBench::start() {
  process_ = std::make_unique<WorkerProcess>(settings_.command);
  const Answer answer = ask({{"do", "hello"}}, settings_.start);
  if (!answer.value) throw EnvironmentError("the process that tries candidates did not start: " + answer.why);
  nlohmann::json unknown;
  gpu_ = read_gpu(answer.value->at("gpu"), "the worker's GPU", unknown);
  nvrtc_ = answer.value->at("nvrtc");
  driver_ = answer.value->at("driver");
  compiles_at_once_ = answer.value->at("compiles_at_once");
}

WorkerBench::Answer WorkerBench::ask(const json& question, std::chrono::milliseconds within) {
  if (process_ == nullptr) start();
  process_->send(question.dump());
  Answer answer;
  for (;;) {
    const WorkerProcess::Received received = process_->receive(within);
    if (received.ending != WorkerProcess::Ending::none) {
      const bool late = received.ending == WorkerProcess::Ending::late;
      const std::string end = process_->stop();
      answer.why = late ? fmt::format("did not end within {} s", std::chrono::duration<double>(within).count())
                        : fmt::format("the process that tried it ended with {}", end);
      break;
    }
    const json line = json::parse(received.line, nullptr, false);
    if (!line.is_object()) {
      throw EnvironmentError(
          fmt::format("the process that tries candidates, {}, said '{}'; expected a JSON object a "
                      "line: is it the `packjit` of this version?",
                      settings_.command.front(), received.line));
    }
    if (line.contains("use")) {
      answer.candidate = line.at("use").get<std::size_t>();
      within = settings_.use;
    } else if (line.contains("fault")) {
      answer.why = line.at("fault");
      answer.candidate.reset();
      if (!line.at("candidate").is_null()) answer.candidate = line.at("candidate").get<std::size_t>();
      static_cast<void>(process_->stop());
      break;
    } else if (line.contains("error")) {
      throw EnvironmentError("trying candidates failed: " + line.at("error").get<std::string>());
    } else {
      answer.value = line.at("answer");
      return answer;
    }
  }
  process_.reset();
  return answer;
}

std::vector<Trial> WorkerBench::compile(const Spec& spec, std::span<const Config> candidates) {
  const Answer answer =
      ask({{"do", "compile"}, {"spec", json_of(spec)}, {"candidates", json_of(candidates)}}, settings_.compile);
  std::vector<Trial> trials(candidates.size());
  if (answer.value) {
    for (std::size_t i = 0; i < trials.size(); ++i) trials[i] = trial_of(answer.value->at(i));
  } else if (candidates.size() == 1) {
    trials[0].failure = "while it was compiled: " + answer.why;
    trials[0].lost_worker = true;
  } else {
    // One of them ended the compiler's process: half of them at a time shows which.
    const std::size_t half = candidates.size() / 2;
    trials = compile(spec, candidates.first(half));
    const std::vector<Trial> rest = compile(spec, candidates.subspan(half));
    trials.insert(trials.end(), rest.begin(), rest.end());
  }
  return trials;
}

Trial WorkerBench::check(const Spec& spec, const Config& candidate, const TuningTarget* target) {
  json question = {{"do", "check"}, {"spec", json_of(spec)}, {"candidates", json_of({&candidate, 1})}};
  if (target != nullptr) question["target"] = json_of(*target);
  const Answer answer = ask(question, settings_.compile);
  if (answer.value) return trial_of(*answer.value);
  Trial trial;
  trial.failure = answer.why;
  trial.lost_worker = true;
  return trial;
}

std::vector<Trial> WorkerBench::time(const TuningTarget& target, std::span<const Config> candidates, int rounds) {
  std::vector<Trial> trials(candidates.size());
  std::vector<std::size_t> left(candidates.size());
  std::iota(left.begin(), left.end(), std::size_t{0});
  while (!left.empty()) {
    std::vector<Config> asked;
    asked.reserve(left.size());
    for (const std::size_t i : left) asked.push_back(candidates[i]);
    const Answer answer =
        ask({{"do", "time"}, {"target", json_of(target)}, {"candidates", json_of(asked)}, {"rounds", rounds}},
            settings_.compile);
    if (answer.value) {
      for (std::size_t i = 0; i < left.size(); ++i) trials[left[i]] = trial_of(answer.value->at(i));
      return trials;
    }
    if (!answer.candidate && left.size() == 1) {
      throw EnvironmentError("timing candidates failed before one was used: " + answer.why);
    }
    if (!answer.candidate) {
      // It could be any of them: alone, each shows.
      for (const std::size_t i : left) trials[i] = time(target, candidates.subspan(i, 1), rounds).front();
      return trials;
    }
    Trial& lost = trials[left.at(*answer.candidate)];
    lost.failure = answer.why;
    lost.lost_worker = true;
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(*answer.candidate));
  }
  return trials;
}

double WorkerBench::limit_ms(const TuningTarget& target) {
  const Answer answer = ask({{"do", "limit"}, {"target", json_of(target)}}, settings_.compile);
  if (!answer.value) throw EnvironmentError("asking for the limits of a shape failed: " + answer.why);
  return answer.value->get<double>();
}

namespace {

json answer_to(TrialBench& bench, const json& question) {
  const std::string what = question.at("do");
  if (what == "hello") {
    return {{"gpu", json_of(bench.gpu())},
            {"nvrtc", bench.nvrtc()},
            {"driver", bench.driver()},
            {"compiles_at_once", bench.compiles_at_once()}};
  }
  std::optional<TuningTarget> target;
  if (question.contains("target")) target = target_of(question.at("target"));
  if (what == "limit") return bench.limit_ms(target.value());
  const Spec spec = question.contains("spec") ? spec_of(question.at("spec")) : target.value().spec;
  const std::vector<Config> candidates = configs_of(question.at("candidates"), spec.op);
  if (what == "check") return json_of(bench.check(spec, candidates.at(0), target ? &*target : nullptr));
  const std::vector<Trial> trials = what == "compile"
                                        ? bench.compile(spec, candidates)
                                        : bench.time(target.value(), candidates, question.at("rounds").get<int>());
  json list = json::array();
  for (const Trial& trial : trials) list.push_back(json_of(trial));
  return list;
}

}  // namespace

void serve_trials(TrialBench& bench, std::istream& in, std::ostream& out) {
  const auto say = [&](const json& line) { out << line.dump() << std::endl; };
  bench.on_use = [&](std::size_t candidate) { say({{"use", candidate}}); };
  for (std::string line; std::getline(in, line);) {
    try {
      say({{"answer", answer_to(bench, json::parse(line))}});
    } catch (const CandidateFault& fault) {
      json last = {{"fault", fault.what()}, {"candidate", nullptr}};
      if (fault.candidate) last["candidate"] = *fault.candidate;
      say(last);
      return;
    } catch (const std::exception& error) {
      say({{"error", error.what()}});
    }
  }
}

}  // namespace packjit
