#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "format/format_test_util.h"

namespace vecinfer {
namespace {

/// A few bytes of file system at `path`, unmounted at the end.
class TinyMount {
public:
    TinyMount(const std::filesystem::path& path, const char* options, unsigned long flags = 0)
        : path_(path), mounted_(::mount("tmpfs", path.c_str(), "tmpfs", flags, options) == 0) {}
    TinyMount(const TinyMount&) = delete;
    TinyMount& operator=(const TinyMount&) = delete;
    ~TinyMount() {
        if (mounted_) {
            ::umount2(path_.c_str(), MNT_DETACH);
        }
    }
    bool ok() const { return mounted_; }

private:
    std::filesystem::path path_;
    bool mounted_;
};

void expect_save_fails(const Sidecar& sidecar, const std::filesystem::path& path, const std::string& reason) {
    const Status status = save_sidecar(sidecar, path);
    EXPECT_EQ(status.code(), ErrorCode::io_error);
    EXPECT_EQ(status.message().find(path.string()), 0u) << status.message();
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
}

TEST(SidecarFile, SavesLoadsAndReplaces) {
    TemporaryFolder folder;
    Sidecar sidecar = golden_sidecar();
    const auto path = folder / "a.gguf";
    ASSERT_TRUE(save_sidecar(sidecar, path).ok());
    EXPECT_EQ(load_sidecar(path).value(), sidecar);
    sidecar.facts.tokens = 7;
    ASSERT_TRUE(save_sidecar(sidecar, path).ok());
    EXPECT_EQ(load_sidecar(path).value(), sidecar);
    EXPECT_EQ(folder.entries(), 1u);
}

TEST(SidecarFile, FailedSaveKeepsTheOldFile) {
    TemporaryFolder folder;
    const auto path = folder / "a.gguf";
    ASSERT_TRUE(save_sidecar(golden_sidecar(), path).ok());
    Sidecar bad = golden_sidecar();
    bad.layers[0].smooth_factors.clear();
    EXPECT_FALSE(save_sidecar(bad, path).ok());
    EXPECT_EQ(load_sidecar(path).value(), golden_sidecar());
    EXPECT_EQ(folder.entries(), 1u);
}

TEST(SidecarFile, BadDestinationsAreNamed) {
    TemporaryFolder folder;
    const Sidecar sidecar = golden_sidecar();
    expect_save_fails(sidecar, folder / "missing/a.gguf", "No such file or directory");
    write_bytes(folder / "file", {});
    expect_save_fails(sidecar, folder / "file/a.gguf", "Not a directory");
    std::filesystem::create_directory(folder / "taken");
    expect_save_fails(sidecar, folder / "taken", "Is a directory");
    EXPECT_EQ(folder.entries(), 2u);
}

TEST(SidecarFile, ReadOnlyFolder) {
    TemporaryFolder folder;
    const auto locked = folder / "locked";
    std::filesystem::create_directory(locked);
    if (::geteuid() != 0) {
        ::chmod(locked.c_str(), 0555);
        expect_save_fails(golden_sidecar(), locked / "a.gguf", "Permission denied");
        EXPECT_TRUE(std::filesystem::is_empty(locked));
        ::chmod(locked.c_str(), 0755);
        return;
    }
    TinyMount mount(locked, "size=64k", MS_RDONLY);
    if (!mount.ok()) {
        GTEST_SKIP() << "root ignores permissions and cannot mount a read-only file system here";
    }
    expect_save_fails(golden_sidecar(), locked / "a.gguf", "Read-only file system");
    EXPECT_TRUE(std::filesystem::is_empty(locked));
}

TEST(SidecarFile, FullDiskLeavesNothingBehind) {
    TemporaryFolder folder;
    const auto small = folder / "small";
    std::filesystem::create_directory(small);
    TinyMount mount(small, "size=4k");
    if (!mount.ok()) {
        GTEST_SKIP() << "cannot mount a small file system here";
    }
    expect_save_fails(golden_sidecar(), small / "a.gguf", "No space left on device");
    EXPECT_TRUE(std::filesystem::is_empty(small));
}

TEST(SidecarFile, UnreadablePathsAreNamed) {
    TemporaryFolder folder;
    const Status missing = load_sidecar(folder / "none.gguf").status();
    EXPECT_EQ(missing.code(), ErrorCode::not_found);
    EXPECT_EQ(missing.message(), (folder / "none.gguf").string() + ": cannot open: No such file or directory");
    EXPECT_EQ(load_sidecar(folder.path()).status().message(), folder.path().string() + ": got a folder, expected a file");
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    EXPECT_EQ(load_sidecar(folder / "pipe").status().code(), ErrorCode::invalid_argument);
    write_bytes(folder / "text", std::as_bytes(std::span("no sidecar", 10)));
    EXPECT_EQ(
        load_sidecar(folder / "text").status().message(),
        (folder / "text").string() + ": sidecar: gguf: not a GGUF file: it starts with bytes 6e 6f 20 73, expected \"GGUF\"");
}

}  // namespace
}  // namespace vecinfer
