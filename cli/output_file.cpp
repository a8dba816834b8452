#include "cli/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "runtime/errors.hpp"

namespace packjit {
namespace {

/// Where `path` leads; a link that leads nowhere yet is followed as well, since open() would create its target.
std::filesystem::path behind_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as Linux allows in one look-up
  std::error_code error;
  for (int links = 0; links < kMostLinks && std::filesystem::is_symlink(path, error); ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;  // an absolute `next` replaces the folder
  }
  return path;
}

bool is_full(int error) { return error == ENOSPC || error == EDQUOT; }

/// 0 where files can be made in the folder, else the system's reason. Leaves nothing behind.
int why_unwritable(const std::filesystem::path& folder) {
  const std::filesystem::path inside = (folder.empty() ? "." : folder) / "";  // the slash: only a folder will do
  if (access(inside.c_str(), W_OK | X_OK) != 0) return errno;
  // A file without a name meets quotas and full disks too; not every file system has such files.
  const int descriptor = open(inside.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (descriptor >= 0) {
    close(descriptor);
    return 0;
  }
  return is_full(errno) || errno == EROFS || errno == EACCES ? errno : 0;
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path) : shown_(path), target_(path) {
  if (path.empty()) fail("open", ENOENT);
  struct stat existing {};
  const bool exists = stat(path.c_str(), &existing) == 0;
  if (exists && !S_ISREG(existing.st_mode)) {
    descriptor_ = open(path.c_str(), O_WRONLY | O_CLOEXEC);  // fails with EISDIR for a folder
    if (descriptor_ < 0) fail("open", errno);
    return;
  }
  target_ = behind_links(path);
  // Renaming needs only a writable folder; a file that its owner has write-protected is not replaced for that.
  if (exists && access(target_.c_str(), W_OK) != 0) fail("write", errno);
  if (exists) permissions_ = static_cast<int>(existing.st_mode & 07777U);
  if (const int error = why_unwritable(target_.parent_path()); error != 0) fail("create", error);
}

void OutputFile::open_private() {
  constexpr int kMostTries = 100;
  for (int i = 0; i < kMostTries; ++i) {
    temporary_ = target_.parent_path() / fmt::format(".packjit-{}-{}.tmp", getpid(), i);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0 || errno != EEXIST) break;
  }
  if (descriptor_ < 0) {
    const int error = errno;
    temporary_.clear();
    fail("create", error);
  }
  kept_ = TemporaryPath(temporary_.string());
  if (permissions_ >= 0 && fchmod(descriptor_, static_cast<mode_t>(permissions_)) != 0) {
    fail("set the permissions of", errno);
  }
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::write(std::span<const std::byte> data) {
  if (finished_) throw std::logic_error("OutputFile: written to after commit or a failure");
  if (descriptor_ < 0) open_private();
  while (!data.empty()) {
    const ssize_t written = ::write(descriptor_, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", errno);
    data = data.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void OutputFile::commit() {
  if (finished_) throw std::logic_error("OutputFile: committed twice or after a failure");
  if (descriptor_ < 0) open_private();
  if (!temporary_.empty() && fsync(descriptor_) != 0) fail("sync", errno);
  const int closed = close(descriptor_);
  descriptor_ = -1;
  finished_ = true;
  if (closed != 0) fail("close", errno);
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail("replace", errno);
  temporary_.clear();
  kept_ = TemporaryPath();
}

void OutputFile::fail(const char* attempt, int error) {
  discard();
  throw_write_error(error, fmt::format("cannot {} output file '{}': {}{}", attempt, shown_.string(),
                                       std::generic_category().message(error),
                                       std::filesystem::exists(shown_) ? "; it was left as it was" : ""));
}

void OutputFile::discard() noexcept {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporary_.clear();
  kept_ = TemporaryPath();
  finished_ = true;
}

void throw_write_error(int error, const std::string& message) {
  if (is_full(error)) throw EnvironmentError(message);
  throw std::invalid_argument(message);
}

void refuse_same_file(std::string_view input_option, const std::filesystem::path& input, std::string_view output_option,
                      const std::filesystem::path& output) {
  namespace fs = std::filesystem;
  if (input.empty() || output.empty()) return;
  std::error_code none;
  // A terminal or /dev/null may be both. Two outputs need not be there yet.
  const bool same = fs::exists(output, none) ? fs::equivalent(input, output, none) && fs::is_regular_file(output, none)
                                             : fs::weakly_canonical(input, none) == fs::weakly_canonical(output, none);
  if (!same) return;
  throw std::invalid_argument(
      fmt::format("{} and {} are the same file, '{}', of which only one would be left; name "
                  "another one",
                  input_option, output_option, output.string()));
}

void write_output_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace packjit
