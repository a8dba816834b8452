#include "cli/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

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
  if (exists && fchmod(descriptor_, existing.st_mode & 07777U) != 0) fail("set the permissions of", errno);
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::write(std::span<const std::byte> data) {
  if (descriptor_ < 0) throw std::logic_error("OutputFile: written to after commit or a failure");
  while (!data.empty()) {
    const ssize_t written = ::write(descriptor_, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", errno);
    data = data.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void OutputFile::commit() {
  if (descriptor_ < 0) throw std::logic_error("OutputFile: committed twice or after a failure");
  if (!temporary_.empty() && fsync(descriptor_) != 0) fail("sync", errno);
  const int closed = close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) fail("close", errno);
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail("replace", errno);
  temporary_.clear();
}

void OutputFile::fail(const char* attempt, int error) {
  discard();
  throw std::invalid_argument(fmt::format("cannot {} output file '{}': {}; it was left as it was", attempt,
                                          shown_.string(), std::generic_category().message(error)));
}

void OutputFile::discard() noexcept {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporary_.clear();
}

void write_output_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace packjit
