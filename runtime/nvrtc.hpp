#pragma once

#include <memory>
#include <string>
#include <vector>

namespace packjit {

struct NvrtcVersion {
  int major = 0, minor = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 sees a null pointer in every defaulted comparison
  friend auto operator<=>(const NvrtcVersion&, const NvrtcVersion&) = default;
};

/// NVIDIA's run-time compiler, opened at run time. Immutable once found; concurrent use is safe.
class Nvrtc {
 public:
  /// Searches as nvrtc_candidates() says and opens the first library that is complete. Throws EnvironmentError that
  /// lists what was tried, why each failed and what to do.
  [[nodiscard]] static std::shared_ptr<const Nvrtc> find();
  /// The same, searched once for the process; a failure is not remembered.
  [[nodiscard]] static std::shared_ptr<const Nvrtc> shared();

  [[nodiscard]] const std::string& path() const;    ///< the library file
  [[nodiscard]] const std::string& origin() const;  ///< why this one: "CUDA_HOME", "Python wheel"...
  [[nodiscard]] NvrtcVersion version() const;
  [[nodiscard]] std::string version_text() const;  ///< "13.0"
  /// Tells this very build of the library from others of the same version, wherever it lies: the linker's build id, or
  /// a digest of the file where it has none.
  [[nodiscard]] const std::string& build() const;
  /// What this library compiles for, ascending: "sm_75", "sm_80"...
  [[nodiscard]] const std::vector<std::string>& archs() const;

  struct Library;  ///< internal: the function table
  explicit Nvrtc(std::unique_ptr<const Library> library);
  ~Nvrtc();
  [[nodiscard]] const Library& library() const { return *library_; }

 private:
  std::unique_ptr<const Library> library_;
};

/// A line of the source that the compiler complains about.
struct FailingLine {
  int number = 0;       ///< from 1
  std::string text;     ///< the source line
  std::string message;  ///< what the compiler says about it
};

/// What one compile gave. A failed compile is a value too: `ok` is false, `log` and `failing_lines` say why.
struct CompileResult {
  bool ok = false;
  std::string log;  ///< the compiler's, warnings included
  std::vector<std::string> options;
  std::vector<FailingLine> failing_lines;
  std::string arch;   ///< "sm_90"
  std::string cubin;  ///< the image for exactly this architecture; empty on failure
  std::string ptx;    ///< for this architecture and later ones; empty on failure
  double seconds = 0;
  std::string nvrtc_version;  ///< "13.0"
};

struct CompileSettings {
  bool verbose = false;  ///< adds the assembler's report of registers and spills to the log
  bool anew = false;     ///< does not ask the cache that NVRTC 13 and later keep with the driver's
};

/// The options that compile() gives to NVRTC.
[[nodiscard]] std::vector<std::string> compile_options(const std::string& arch, const CompileSettings& settings = {});

/// Compiles self-contained CUDA C++ to cubin and PTX. Pure but for time: touches no driver, no file.
///
/// `arch` is one of nvrtc.archs(); anything else throws std::invalid_argument that lists them. Source that does not
/// compile is returned as a value. Throws EnvironmentError where the NVRTC installation is broken (its builtins library
/// is missing) and std::runtime_error for failures inside NVRTC. Concurrent calls are safe.
[[nodiscard]] CompileResult compile(const Nvrtc& nvrtc, const std::string& source, const std::string& arch,
                                    const CompileSettings& settings = {});

/// A failed compile in words: the first failing lines with their text, the options, the log.
[[nodiscard]] std::string describe_failure(const CompileResult& result);

}  // namespace packjit
